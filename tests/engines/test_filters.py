"""FLARE's own privacy filters on what a site sends: on differences, and back."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.filters.convert_weights import ConvertWeights
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from monai_fedskew.engines.nvflare import SiteExecutor, from_shareable, to_shareable
from monai_fedskew.errors import StateError
from monai_fedskew.federation.wire import Packed

BASE = {"w": np.full((4, 5), 2.0, np.float32), "b": np.full(3, -1.0, np.float32)}


def filtered(*filters: Any) -> dict[str, Any]:
    """What leaves a site that received BASE and trained every number up by 0.02, after the kit's filters."""
    executor, fl_ctx = SiteExecutor("fedbn", "s", {}), FLContext()
    # no request, so the answer is an error; the weights in it are what the filters are to take differences to
    executor.execute("fit", to_shareable(Packed(BASE, {}, "{}")), fl_ctx, Signal())
    fl_ctx.set_prop(FLContextKey.TASK_DATA, None, private=True, sticky=False)  # as FLARE's client leaves it
    executor.handle_event(EventType.BEFORE_TASK_RESULT_FILTER, fl_ctx)
    sent = to_shareable(Packed({key: value + np.float32(0.02) for key, value in BASE.items()}, {}, "{}"))
    for step in (ConvertWeights("weights_to_diff"), *filters, ConvertWeights("diff_to_weights")):
        sent = step.process(sent, fl_ctx)
    return dict(from_shareable(sent).tensors)


def test_a_clipping_filter_clips_the_step_and_not_the_weights() -> None:
    """Steps of 0.02 held to 0.01: 2.01 and -0.99 arrive."""
    arrived = filtered(PercentilePrivacy(percentile=0, gamma=0.01, data_kinds=[DataKind.WEIGHT_DIFF]))

    assert np.allclose(arrived["w"], 2.01, atol=1e-6)
    assert np.allclose(arrived["b"], -0.99, atol=1e-6)


def test_a_noise_filter_is_not_passed_over() -> None:
    """SVT keeps half of the numbers and adds noise to them; the others arrive as they were sent out."""
    noise = SVTPrivacy(fraction=0.5, epsilon=1e4, noise_var=1e2, gamma=0.05, data_kinds=[DataKind.WEIGHT_DIFF])
    arrived = filtered(noise)

    values = np.concatenate([arrived["w"].ravel() - 2, arrived["b"] + 1])
    assert 0 < np.count_nonzero(values) <= 12
    assert not np.isclose(values, 0.02, atol=1e-7).any()


def test_the_noise_of_a_filter_does_not_follow_from_the_seed_of_the_run() -> None:
    """Training leaves numpy's stream at a number that the server knows; a second site there draws other noise."""
    noise = SVTPrivacy(fraction=0.5, epsilon=1e4, noise_var=1e2, gamma=0.05, data_kinds=[DataKind.WEIGHT_DIFF])
    draws = []
    for _ in range(2):
        np.random.seed(0)
        draws.append(filtered(noise)["w"])

    assert not np.array_equal(*draws)


def test_differences_that_were_not_turned_back_are_refused() -> None:
    """They would be averaged as weights."""
    message = DXO(DataKind.WEIGHT_DIFF, BASE, {"aux": {}, "fedskew": "{}"}).to_shareable()

    with pytest.raises(StateError, match="weights but with .*WEIGHT_DIFF; let the filters of the kit turn them back"):
        from_shareable(message)
