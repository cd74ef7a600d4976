"""What the predictions rest on.

`kimi_k3_config.json`: the model's config.json, as shipped with aiconfigurator-core 0.12.0 (Apache-2.0).
`gb300_kernels.csv`: kernel timings of the same release; the column `source` names the file of each.
`published.csv`: published decode measurements; the column `source` names the publication of each.
`calibration.json`: written from these by `python -m tuner.predict.calibrate`.
"""
