"""Bytes and counts against what was published of the model and its checkpoint."""

import pytest

from tuner.predict import layers

TB, GB, MB = 1e12, 1e9, 1e6


def test_bytes_add_up_to_the_size_of_the_checkpoint() -> None:
    """Published sizes run from 1.42 to 1.56 TB, by what is counted; this counts all but the vision tower."""
    whole = layers.weights(1, specialized=True).held
    assert 1.42 * TB < whole < 1.565 * TB


def test_parameters_add_up_to_the_published_counts() -> None:
    """2.72 T in routed experts, about 104 G active."""
    routed = layers.MOE_LAYERS * layers.EXPERTS * 3 * layers.EXPERT_WIDTH * layers.LATENT
    assert routed == pytest.approx(2.72e12, rel=0.005)
    assert layers.active_parameters() == pytest.approx(104e9, rel=0.005)


@pytest.mark.parametrize(("tp", "gigabytes"), [(8, 17.86), (16, 9.91)])
def test_a_token_reads_what_the_shapes_of_vllm_s_projections_add_up_to(tp: int, gigabytes: float) -> None:
    """Sums of the projections' shapes in vLLM 0.33.0, specialised layout, padding of a few rows left out here."""
    held = layers.weights(tp, specialized=True)
    read = held.always + layers.MOE_LAYERS * layers.TOP_K * held.expert
    assert read == pytest.approx(gigabytes * GB, rel=0.002)


def test_experts_are_padded_on_16_ranks_and_not_on_8() -> None:
    assert layers.weights(8).expert * 8 == pytest.approx(layers.weights(1).expert)
    assert layers.weights(16).expert * 16 == pytest.approx(layers.weights(1).expert * 256 / 192)


def test_the_stock_path_holds_router_and_latent_projections_on_every_rank() -> None:
    for tp in (8, 16):
        apart = layers.weights(tp).always - layers.weights(tp, specialized=True).always
        replicated = (layers.EXPERTS + 2 * layers.LATENT) * layers.HIDDEN * layers.BF16 * layers.MOE_LAYERS
        assert apart == pytest.approx(replicated * (1 - 1 / tp))


def test_state_and_keys_are_as_large_as_the_model_card_says() -> None:
    assert layers.kv_bytes(1, fp8=True) == 13_824
    assert layers.kv_bytes(4096, fp8=True, dcp=16) * 16 == layers.kv_bytes(4096, fp8=True)
    assert layers.state_bytes(1, float32=True) == pytest.approx(434 * MB, rel=0.001)
    assert layers.state_bytes(8, float32=False) * 2 == layers.state_bytes(8, float32=True)


def test_distinct_experts_begin_with_16_and_end_with_all() -> None:
    assert layers.experts_read(1) == pytest.approx(16)
    assert layers.experts_read(2) < 32
    assert layers.experts_read(4096) == pytest.approx(896)


def test_the_busiest_rank_reads_more_than_the_mean_and_no_more_than_it_holds() -> None:
    """Largest of 16 counts of one each: 3.06 by simulation of 200,000 draws of 16 independent Poisson counts."""
    assert layers.busiest_rank(1, 16) == pytest.approx(3.07, abs=0.03)
    for tokens in (1, 8, 64, 512):
        mean = layers.experts_read(tokens) / 16
        assert mean < layers.busiest_rank(tokens, 16) <= 56


def test_a_prompt_twice_as_long_takes_more_than_twice_the_arithmetic() -> None:
    assert layers.prefill_flops(131_072) > 2 * layers.prefill_flops(65_536) > 4 * layers.prefill_flops(32_768)
