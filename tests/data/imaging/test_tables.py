"""Tables of images, and given lists of splits."""

from pathlib import Path

import pytest

from monai_fedskew.data.imaging.given_splits import apply_splits
from monai_fedskew.data.imaging.layouts import LAYOUTS, find_images
from monai_fedskew.data.imaging.layouts.table import read_table, table_names
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.errors import DataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sites of three files."""
    for name in ("A/1.png", "A/2.png", "B/1.png", "B/m.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def _table(root: Path, *lines: str) -> Path:
    path = root / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_says_all_of_an_image(root: Path) -> None:
    """Without a column the first folder is the site; the subject keeps its zeros; words of splits are understood."""
    table = _table(root, "Path,label,patient,split", "A/1.png,x,007,training", "B/1.png,y,008,val")
    one, two = read_table(table, root)
    assert one == ImageSource("A", "1", (root / "A/1.png",), label="x", group="007", split="train")
    assert (two.site, two.split) == ("B", "validation")


def test_short_lines_and_roundabout_paths(root: Path) -> None:
    """A line that ends early has empty cells; a path with .. is the image that it leads to."""
    table = _table(root, "image,label,subject", "A/1.png,x", "A/../A/2.png,x,p")
    assert [(one.id, one.group) for one in read_table(table, root)] == [("1", ""), ("2", "p")]


def test_a_mask_column_means_segmentation(root: Path) -> None:
    """Several files in one cell are channels; paths may start at the table's own folder."""
    (root / "lists").mkdir()
    table = root / "lists" / "t.csv"
    table.write_text("image,mask,site\nA/1.png; A/2.png,B/m.png,C\n")
    (source,) = read_table(table, root)
    assert (source.site, source.files, source.mask) == ("C", (root / "A/1.png", root / "A/2.png"), root / "B/m.png")


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("image,class", "A/9.png,x"), r"table\.csv, line 2: A/9\.png does not exist"),
        (("image,class", "A/1.png,"), "line 2: A/1.png has no label"),
        (("image,mask", "A/1.png,"), "line 2: A/1.png has no mask"),
        (("image,label,split", "A/1.png,x,holdout"), "line 2: split is 'holdout'; write train, validation or test"),
        (("image,sex", "A/1.png,f"), "columns image, sex; image is needed, and label or mask"),
        (("image,label",), "no line below"),
        (("image,Label,label", "A/1.png,x,y"), "has two columns 'label'; leave one"),
        (("image,label", "A/1.png,x,y"), "Expected 2 fields in line 2, saw 3"),
    ],
)
def test_what_a_table_lacks_is_named(lines: tuple[str, ...], text: str, root: Path) -> None:
    """Table and line."""
    with pytest.raises(DataError, match=text):
        read_table(_table(root, *lines), root)


def test_numbers_order_the_names_of_classes(root: Path) -> None:
    """Columns label and class go together; where they do not, that is an error."""
    assert table_names(_table(root, "path,label,class", "a,1,bike", "b,0,mug", "c,1,bike")) == ("mug", "bike")
    assert table_names(_table(root, "path,class", "a,mug")) == ()
    (root / "images.csv").write_text("image,label,class\nA/1.png,1,bike\nB/1.png,0,mug\n")
    layout, found = find_images(root)
    assert (layout, {source.label for source in found}) == ("table", {"bike", "mug"})
    assert LAYOUTS["table"].label_names(root) == ("mug", "bike")
    with pytest.raises(DataError, match="do not go together"):
        table_names(_table(root, "path,label,class", "a,1,bike", "b,1,mug"))


def _found(root: Path) -> list[ImageSource]:
    return [
        ImageSource(site, k, (root / site / f"{k}.png",), label="x") for site, k in (("A", "1"), ("A", "2"), ("B", "1"))
    ]


def test_a_list_lays_splits_over_images(root: Path) -> None:
    """Other columns are ignored; an image that is not listed has no split."""
    table = _table(root, "path,domain,label,class,split", "A/1.png,A,0,x,train", "B/1.png,B,0,x,test")
    assert [source.split for source in apply_splits(_found(root), table, root)] == ["train", "", "test"]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("path,split", "A/1.png,train", "A/8.png,test", "A/9.png,test"), r"line 3: A/8\.png is no .* nor are 1 other"),
        (("path,split", "A/1.png,train", "A/1.png,test"), r"line 3: A/1\.png is in train and in test"),
        (("name,split", "A/1.png,train"), "columns name, split; path and split are needed"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(lines: tuple[str, ...], text: str, root: Path) -> None:
    """A line without its image, an image twice, no such column."""
    with pytest.raises(DataError, match=text):
        apply_splits(_found(root), _table(root, *lines), root)
