import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from monai_fedskew.errors import DataError
from monai_fedskew.reports.brain import edge_importance, first_layer, rank_edges
from monai_fedskew.reports.facts import site_facts
from monai_fedskew.reports.results import read_results


def test_importance_is_the_norm_over_hidden_units_times_the_spread() -> None:
    """Column (3, 4) has norm 5; a spread of 2 doubles it."""
    weight = np.array([[3.0, 1.0], [4.0, 0.0]], np.float32)

    assert edge_importance(weight).tolist() == [5, 1]
    assert edge_importance(weight, np.array([2.0, 7.0])).tolist() == [10, 7]


def test_first_layer_is_found_by_its_input_size(tmp_path: Path) -> None:
    """The weight whose input fits is taken, whatever its name; no fit is an error."""
    fitting = np.ones((4, 10), np.float32)
    save_file({"a.weight": np.ones((10, 4), np.float32), "z.kernel": fitting}, tmp_path / "model.safetensors")

    assert first_layer(tmp_path / "model.safetensors", 10).shape == (4, 10)
    with pytest.raises(DataError, match="no 2-D weight with 11 inputs"):
        first_layer(tmp_path / "model.safetensors", 11)
    with pytest.raises(DataError, match="cannot be read"):
        first_layer(tmp_path / "absent.safetensors", 10)


def test_a_planted_edge_ranks_first_with_its_regions(comparison: Path, tmp_path: Path) -> None:
    """Edge 5 of five regions joins regions 1 and 3: (0,1) (0,2) (0,3) (0,4) (1,2) (1,3)."""
    folder = shutil.copytree(comparison, tmp_path / "compare")
    for model in folder.glob("runs/local/*/sites/*/model.safetensors"):
        weight = np.full((16, 10), 0.01, np.float32)
        weight[:, 5] = 1
        save_file({"fc1.weight": weight}, model)
    results = read_results(folder)

    ranking = rank_edges(results, site_facts(results), "local", top=3)

    first = ranking.edges[0]
    assert (first.rank, first.name, first.first, first.second) == (1, "11-13", "11 Region 1", "13 Region 3")
    assert (first.seeds, ranking.seeds, ranking.models, ranking.is_scaled) == (3, 3, 6, True)
    assert 9 < first.share <= 10
    assert ranking.image is not None
    assert ranking.image.startswith(b"\x89PNG")


def test_a_normalising_method_is_not_scaled_by_the_spread(tmp_path: Path) -> None:
    """Where a part rescales features before the network, as run.json says, the stored spread is left out."""
    from folders import write_comparison

    folder = write_comparison(tmp_path / "c", {"fedrdn+fedbn": 0.6}, (0,))
    results = read_results(folder)

    ranking = rank_edges(results, site_facts(results), "fedrdn+fedbn")

    assert not ranking.is_scaled
    assert ranking.unscaled == "the method normalises the features before the network sees them"


def test_a_run_that_does_not_say_what_it_did_is_not_scaled(comparison: Path, tmp_path: Path) -> None:
    """Without the key "stages" nobody knows whether features were rescaled: the spread is left out, and why."""
    folder = shutil.copytree(comparison, tmp_path / "compare")
    details = json.loads((folder / "runs/local/seed1/run.json").read_text())
    del details["stages"]
    (folder / "runs/local/seed1/run.json").write_text(json.dumps(details))
    results = read_results(folder)

    assert "run.json does not say" in rank_edges(results, site_facts(results), "local").unscaled
    assert rank_edges(results, site_facts(results), "fedavg").is_scaled


def test_without_coordinates_there_is_a_table_and_no_brain(tmp_path: Path) -> None:
    """Regions without coordinates are counted and not drawn."""
    from folders import windows_of, write_run, write_site

    data = {"NORTH": write_site(tmp_path / "data", "NORTH", has_xyz=False)}
    run = write_run(tmp_path / "run", "fedbn", 0, data, {"NORTH": windows_of(data["NORTH"], 0.6, 0)})
    results = read_results(run)

    ranking = rank_edges(results, site_facts(results), "fedbn")

    assert (ranking.image, ranking.regions_without_xyz, len(ranking.edges)) == (None, 5, 10)


def test_facts_of_a_site_by_hand(comparison: Path) -> None:
    """Means and deviations come from the stored rows; classes are counted by subject."""
    fact = site_facts(read_results(comparison))[0]

    rows = np.load(comparison / "data" / "NORTH" / "vectors.npy")
    assert (fact.site, fact.subjects_per_class, fact.rows_used) == ("NORTH", (5, 5), 40)
    np.testing.assert_allclose(fact.mean, rows.mean(0, dtype=np.float64))
    np.testing.assert_allclose(fact.std, rows.std(0, ddof=1, dtype=np.float64))


def test_data_that_are_gone_are_said_to_be(comparison: Path, tmp_path: Path) -> None:
    """A folder that is gone leaves the facts empty and the edges out, each with a sentence."""
    folder = shutil.copytree(comparison, tmp_path / "compare")
    for file in folder.glob("runs/*/*/run.json"):
        file.write_text(file.read_text().replace(str(comparison / "data"), str(tmp_path / "gone")))
    results = read_results(folder)

    facts = site_facts(results)

    assert all(fact.manifest is None and "data folder is gone" in fact.why for fact in facts)
    with pytest.raises(DataError, match="no site's data can be read any more .*NORTH: its data folder is gone"):
        rank_edges(results, facts, "local")


def test_data_prepared_again_are_not_mistaken_for_those_of_the_run(comparison: Path, tmp_path: Path) -> None:
    """When the manifest is another than the run recorded, the site's facts are left out and say why."""
    run = shutil.copytree(comparison / "runs" / "local" / "seed0", tmp_path / "run")
    details = json.loads((run / "run.json").read_text())
    details["sites"]["NORTH"]["manifest_sha256"] = "0" * 64
    (run / "run.json").write_text(json.dumps(details))

    north, south = site_facts(read_results(run))

    assert north.manifest is None
    assert "prepared again since the run" in north.why
    assert south.manifest is not None
