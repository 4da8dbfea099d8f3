import numpy as np
import pytest
from nilearn.connectome import ConnectivityMeasure

from monai_fedskew.data.abide.connectome import Edges, connectomes
from monai_fedskew.data.abide.sliding import constant_columns, constant_in_windows, n_windows
from monai_fedskew.errors import ConfigError, DataError


def plain(series: np.ndarray, window: int, stride: int = 1) -> np.ndarray:
    """Fisher z of np.corrcoef of every window, held at 1 - 1e-7, upper triangle, in float64."""
    upper = np.triu_indices(series.shape[1], 1)
    starts = range(0, len(series) - window + 1, stride)
    r = np.array([np.corrcoef(series[k : k + window].T)[upper] for k in starts])
    return np.arctanh(np.clip(r, -1 + 1e-7, 1 - 1e-7))


def mixed(volumes: int, regions: int, seed: int = 0) -> np.ndarray:
    """Smooth, correlated columns of very different scale and offset, some pairs nearly equal."""
    draw = np.random.default_rng(seed)
    x = np.cumsum(draw.standard_normal((volumes, regions)), axis=0) + draw.standard_normal((volumes, 1)) * 5
    x[:, 1] = x[:, 0] + 1e-3 * draw.standard_normal(volumes)
    return x * 10.0 ** draw.integers(-3, 4, regions) + 1000


@pytest.mark.parametrize(
    ("volumes", "regions", "window", "stride"), [(60, 7, 32, 1), (97, 40, 20, 3), (200, 65, 32, 5)]
)
def test_equals_pearson_and_fisher_window_by_window(volumes: int, regions: int, window: int, stride: int) -> None:
    """Edge k is arctanh of np.corrcoef of its pair, on smooth series with near-duplicates, to 1e-5."""
    series = mixed(volumes, regions)
    got = connectomes(series, Edges(window, stride))
    assert got.dtype == np.float32
    assert got.shape == (n_windows(volumes, window, stride), regions * (regions - 1) // 2)
    np.testing.assert_allclose(got, plain(series, window, stride), atol=1e-5, rtol=1e-6)


def test_is_pearson_whatever_the_scale() -> None:
    """Case 24: equal to np.corrcoef within 1e-6 although Ledoit-Wolf would differ by 0.2 on this input."""
    draw = np.random.default_rng(0)
    draw.standard_normal((40, 5))
    series = draw.standard_normal((176, 6)) * np.array([1, 5, 10, 50, 100, 500.0])
    series[:, 1] += 3 * series[:, 0]
    upper = np.triu_indices(6, 1)
    expected = np.corrcoef(series.T)[upper]
    np.testing.assert_allclose(connectomes(series, Edges(176, fisher_z=False))[0], expected, atol=1e-6)
    scaled = (series - series.mean(axis=0)) / series.std(axis=0, ddof=1)
    np.testing.assert_allclose(connectomes(scaled, Edges(176, fisher_z=False))[0], expected, atol=1e-6)
    shrunk = connectomes(series, Edges(176, estimator="ledoit-wolf", fisher_z=False))[0]
    assert np.abs(shrunk - expected).max() > 0.01


@pytest.mark.filterwarnings("ignore:The default strategy for standardize:FutureWarning")  # nilearn 0.13
def test_ledoit_wolf_is_what_nilearn_computes() -> None:
    """Each window equals nilearn's default correlation, the shrinkage of its standardised signal."""
    series = mixed(50, 9)
    windows = [series[k : k + 32] for k in range(19)]
    full = ConnectivityMeasure(kind="correlation").fit_transform(windows)
    upper = np.triu_indices(9, 1)
    got = connectomes(series, Edges(32, estimator="ledoit-wolf", fisher_z=False))
    np.testing.assert_allclose(got, full[:, upper[0], upper[1]], atol=1e-6)


def test_equal_columns_stop_at_the_limit() -> None:
    """r = 1 is held at 1 - 1e-7, so z = 0.5 ln((2 - 1e-7) / 1e-7) = 8.4056; opposite columns give its negative."""
    one = np.random.default_rng(0).standard_normal(32)
    z = connectomes(np.stack([one, 3 * one + 7, -one], axis=1), Edges(32))[0]
    np.testing.assert_allclose(z, [8.4056, -8.4056, -8.4056], atol=1e-4)
    r = connectomes(np.stack([one, 3 * one + 7], axis=1), Edges(32, fisher_z=False))[0]
    assert r == 1


def test_a_still_region_has_edges_of_zero() -> None:
    """A constant such as 0.1, whose standard deviation is not exactly 0, gives 0 and nothing else changes."""
    series = mixed(40, 5)
    series[:, 2] = 0.1
    got = connectomes(series, Edges(32))
    pairs = np.stack(np.triu_indices(5, 1), axis=1)
    touches = (pairs == 2).any(axis=1)
    assert (got[:, touches] == 0).all()
    others = np.delete(series, 2, axis=1)
    np.testing.assert_allclose(got[:, ~touches], plain(others, 32), atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("spike", [1e6, 9e8])
def test_a_quiet_window_after_a_loud_one_keeps_its_digits(spike: float) -> None:
    """A spike of up to the largest size earlier in the scan does not disturb later windows."""
    series = np.random.default_rng(0).standard_normal((120, 4))
    series[3] += spike
    np.testing.assert_allclose(connectomes(series, Edges(32))[10:], plain(series[10:], 32), atol=1e-5)


@pytest.mark.parametrize("estimator", ["pearson", "ledoit-wolf"])
def test_the_result_depends_on_the_window_only(estimator: str) -> None:
    """Any choice of windows, number of threads or array to write into gives the same bits."""
    series = mixed(230, 33)
    edges = Edges(32, 1, estimator, clip_negative=True)
    whole = connectomes(series, edges)
    some = np.array([5, 198, 0, 77, 78])
    assert (connectomes(series, edges, windows=some) == whole[some]).all()
    assert (connectomes(series, edges, threads=3) == whole).all()
    buffer = np.full_like(whole, np.nan)
    assert connectomes(series, edges, out=buffer) is buffer
    assert (buffer == whole).all()
    assert (whole >= 0).all()
    assert connectomes(series, edges, windows=np.array([], np.int64)).shape == (0, 528)


def test_windows_are_counted_by_the_formula() -> None:
    """Case 25: floor((T - w) / stride) + 1, none for a scan shorter than the window."""
    assert [n_windows(volumes, 32) for volumes in (176, 296, 236, 116, 76)] == [145, 265, 205, 85, 45]
    assert [n_windows(100, 32, stride) for stride in (2, 7, 68, 69)] == [35, 10, 2, 1]
    assert n_windows(76, 100) == 0


def test_still_columns_are_found_in_scan_and_window() -> None:
    """A column that stands still for exactly one window is found there and not as a constant column."""
    series = np.arange(12.0).reshape(6, 2)
    series[2:5, 1] = 7
    assert constant_columns(series).tolist() == [False, False]
    assert constant_in_windows(series, 3).tolist() == [[False, False], [False, False], [False, True], [False, False]]


def test_bad_input_is_refused() -> None:
    """Too short, not finite, not a matrix, values out of range."""
    with pytest.raises(DataError, match=r"shape \(20, 3\) has no window of 32 volumes"):
        connectomes(np.zeros((20, 3)))
    with pytest.raises(DataError, match="1 values that are not finite"):
        connectomes(np.where(np.eye(40, 3) * np.arange(40)[:, None] == 2, np.nan, 1.0), Edges(32))
    spike = np.random.default_rng(0).standard_normal((40, 3))
    spike[3, 1] = 1e38  # would leave its column 0 in the windows after it
    with pytest.raises(DataError, match=r"1 values that are not finite or beyond 1e\+09 in size"):
        connectomes(spike)
    with pytest.raises(ConfigError, match="window=2: a correlation needs at least 3"):
        Edges(2)
    with pytest.raises(ConfigError, match="stride=0"):
        Edges(32, 0)
    with pytest.raises(ConfigError, match="estimator='kendall': must be one of pearson, ledoit-wolf"):
        Edges(estimator="kendall")  # type: ignore[arg-type]
