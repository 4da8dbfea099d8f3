import xml.etree.ElementTree as ElementTree
from pathlib import Path

from monai_fedskew.reports import plots
from monai_fedskew.reports.facts import site_facts
from monai_fedskew.reports.results import Results, read_results
from monai_fedskew.reports.site_plots import site_statistics


def test_a_method_has_one_colour_and_ten_differ() -> None:
    """Colours follow the order of the study and do not repeat within ten methods."""
    methods = [f"m{k}" for k in range(10)]

    assert len(set(plots.colours(methods).values())) == 10
    assert plots.colours(methods)["m3"] == plots.colours(methods[:5])["m3"]


def test_figures_are_valid_svg_of_the_page_width(comparison: Path) -> None:
    """Every figure is well-formed SVG, at most ten inches (720 points) wide but for a margin."""
    results = read_results(comparison)
    drawn = [
        plots.convergence(results),
        plots.bars(results, "window"),
        plots.bars(results, "subject"),
        site_statistics(site_facts(results)),
    ]

    for image in drawn:
        assert image is not None
        width = float(ElementTree.fromstring(image).attrib["width"].removesuffix("pt"))
        assert 500 < width < 760


def test_methods_without_a_run_take_no_room(comparison: Path) -> None:
    """The bars of the others stand as if those methods were not in the study."""
    from dataclasses import replace

    results = read_results(comparison)
    more = replace(results, methods=(*results.methods, "pooled", "silobn"))

    assert plots.bars(more, "window") == plots.bars(results, "window")


def test_a_loss_that_falls_by_much_has_a_log_scale(comparison: Path) -> None:
    """From 0.7 to 0.23 the scale is linear; from 0.7 to 0.007 it is not."""
    from dataclasses import replace

    def falling(results: Results, by: float) -> Results:
        runs = {
            key: replace(run, history=tuple(replace(m, value=m.value / by) if m.round == 3 else m for m in run.history))
            for key, run in results.runs.items()
        }
        return replace(results, runs=runs)

    results = read_results(comparison)
    assert "log scale" not in str(plots.convergence(results))
    assert "(log scale)" in str(plots.convergence(falling(results, 33)))


def test_drawing_leaves_pyplot_alone(comparison: Path) -> None:
    """No figure stays registered with pyplot after drawing."""
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    plots.bars(read_results(comparison), "window")

    assert plt.get_fignums() == before


def test_a_run_without_history_has_no_curves(comparison: Path) -> None:
    """Nothing recorded, nothing drawn."""
    from dataclasses import replace

    results = read_results(comparison)
    bare = replace(results, runs={key: replace(run, history=()) for key, run in results.runs.items()})

    assert plots.convergence(bare) is None
