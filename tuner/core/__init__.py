"""Study, trial, workload, measurement, search, confirmation, decision, export. Pure: no SQL, HTTP, GPU or process."""
