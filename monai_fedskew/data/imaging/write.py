"""Write the sites: their images as rows of an array, or their files as they are."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.store import Moments, in_order, open_array
from monai_fedskew.data.image_sites import write_file_site
from monai_fedskew.data.imaging.convert import as_row, canonical, row_shape
from monai_fedskew.data.imaging.examine import Facts, examine
from monai_fedskew.data.imaging.files import place
from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.read import Pixels
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.data.imaging.summary import Survey
from monai_fedskew.data.manifest import DATA_FILES, Excluded, SiteManifest, Subject, read_manifest, write_manifest
from monai_fedskew.errors import DataError

__all__ = ["SiteWriter", "Written"]

Row = npt.NDArray[np.float32]


@dataclass
class Written:
    """What is known of a site once its images are written; its manifest needs the labels of all sites.

    Args:
        site: its name.
        survey: what its images look like.
        subjects: one an image, with label 0 until the names are known.
        labels: class of each image, by its id; empty for masks.
        highest: largest value in each mask, by id of the image.
        digests: SHA-256 of each image's files, by id.
        sources: SHA-256 of source files, as a manifest has them.
        excluded: what could not be read.
        warnings: a sentence each.
        moments: of the values of rows.
        shape: of rows; empty for files.
        data_digest: of the array; empty for files.
    """

    site: str
    survey: Survey
    subjects: list[Subject] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    moments: Moments = field(default_factory=Moments)
    shape: tuple[int, ...] = ()
    data_digest: str = ""


@dataclass
class SiteWriter:
    """Writes one site after the other below a folder that becomes ``out``.

    Args:
        folder: where to write.
        out: what the folder will be called, for paths of files that stay where they are.
        data: folder of the images, for the names of sources.
        options: what was asked for.
        store: ``vectors`` or ``files``.
        is_binary: whether masks become 0 and 1.
    """

    folder: Path
    out: Path
    data: Path
    options: Options
    store: str
    is_binary: bool
    _shape: tuple[int, ...] = ()

    def write(self, site: str, sources: Sequence[ImageSource], *, threads: int, tick: Callable[[int], None]) -> Written:
        """Look at every image of a site, and write its row or put its files in place.

        Raises:
            DataError: an image that cannot be used. Names site and file.
        """
        written, folder = Written(site, Survey(len(sources))), self.folder / site
        folder.mkdir()
        results = in_order(self._result, ((source,) for source in sources), threads=threads)
        with ExitStack() as stack:
            array = None
            for number, (source, result) in enumerate(zip(sources, results, strict=True), start=1):
                if isinstance(result, Excluded):
                    written.excluded.append(result)
                else:
                    facts, row = result
                    if row is not None:
                        self._require_shape(source, row)
                        path = folder / DATA_FILES["vectors"]
                        array = array or stack.enter_context(open_array(path, row.size, "float32"))
                        array.append(row.reshape(1, -1))
                        written.moments += _moments(row)
                    self._add(written, source, facts)
                tick(number)
        if not written.subjects:
            first = written.excluded[0]
            raise DataError(
                f"site {site}: none of {len(sources)} images can be read; first: {first.id}: {first.reason}"
            )
        if array is not None:
            written.data_digest, written.shape = array.digest.text, self._shape
        _warn(written)
        return written

    def finish(
        self, written: Written, names: Sequence[str], notes: Mapping[str, str], left_out: Sequence[Excluded]
    ) -> SiteManifest:
        """Write a site's manifest, now that the names of labels are known."""
        folder, survey = self.folder / written.site, written.survey.plain()
        numbers = {name: number for number, name in enumerate(names)}
        subjects = [
            Subject(
                s.id,
                numbers[written.labels[s.id]] if written.labels else 0,
                s.start,
                s.stop,
                s.group,
                s.split,
                s.files,
                s.mask,
            )
            for s in written.subjects
        ]
        excluded = sorted([*written.excluded, *left_out], key=lambda item: item.id)
        notes = {
            **notes,
            **{f"images: {key}": str(survey[key]) for key in ("orientation", "spacing mm", "size") if survey[key]},
        }
        moments = written.moments if self.store == "vectors" else written.survey.moments
        summary = {"mean": moments.mean, "std": moments.std, "images": float(len(subjects))}
        if self.store == "files":
            write_file_site(
                folder,
                subjects,
                label_names=names,
                shape=written.survey.median_shape,
                sources=written.sources,
                summary=summary,
                notes=notes,
                excluded=excluded,
            )
        else:
            manifest = SiteManifest(
                site=written.site,
                label_names=tuple(names),
                kind="image",
                regions=(),
                features=(),
                subjects=tuple(subjects),
                excluded=tuple(excluded),
                sources=written.sources,
                data_digest=written.data_digest,
                summary=summary,
                notes=notes,
                shape=written.shape,
            )
            write_manifest(folder, manifest)
        return read_manifest(folder)

    def _result(self, source: ImageSource) -> "tuple[Facts, Row | None] | Excluded":
        """Read and convert one image, in a thread of its own."""
        try:
            facts, pixels = examine(source)
            return facts, self._row(source, pixels) if self.store == "vectors" else None
        except DataError as error:
            if self.options.skips_unreadable:
                return Excluded(source.id, str(error).removeprefix(f"site {source.site}: "))
            raise

    def _row(self, source: ImageSource, pixels: Pixels) -> Row:
        options = self.options
        shape = row_shape(canonical(pixels), options.size, options.channels)
        return as_row(pixels, shape, options.value_range, where=f"site {source.site}: {source.files[0]}")

    def _require_shape(self, source: ImageSource, row: Row) -> None:
        self._shape = self._shape or row.shape
        if row.shape != self._shape:
            raise DataError(
                f"site {source.site}: {source.files[0]} is {_times(row.shape)} (channels first), images before it are "
                f"{_times(self._shape)}; rows must be of one shape: give --size and --channels"
            )

    def _add(self, written: Written, source: ImageSource, facts: Facts) -> None:
        row, folder = len(written.subjects), self.folder / source.site
        if row and len(facts.size) != len(written.survey.sizes[0]):
            raise DataError(
                f"site {source.site}: {source.files[0]} has {len(facts.size)} spatial axes, images before it "
                f"{len(written.survey.sizes[0])}; prepare pictures and volumes apart"
            )
        written.survey.add(facts)
        written.digests[source.id] = " ".join(facts.digests[path] for path in source.files)
        files: tuple[str, ...] = ()
        mask = ""
        if self.store == "files":
            placed = place(
                source,
                facts,
                folder,
                self.out / source.site,
                has_copies=self.options.has_copies,
                is_binary=self.is_binary,
            )
            files, mask = placed.files, placed.mask
            written.sources |= placed.digests
        else:
            written.sources |= {_source_name(path, self.data): digest for path, digest in facts.digests.items()}
        if source.mask is not None:
            written.highest[source.id] = min(1, facts.mask_values[-1]) if self.is_binary else facts.mask_values[-1]
        else:
            written.labels[source.id] = str(source.label)
        if facts.is_constant:
            written.warnings.append(f"site {source.site}: {source.files[0]} is the same value everywhere")
        written.subjects.append(Subject(source.id, 0, row, row + 1, source.group, source.split, files, mask))


def _warn(written: Written) -> None:
    """Add what concerns the site as a whole."""
    survey, site = written.survey, written.site
    if survey.n_normalised * 2 > len(survey.sizes):
        written.warnings.append(
            f"site {site}: {survey.n_normalised} of {len(survey.sizes)} images have mean 0 and standard deviation 1 "
            "already: what tells sites apart is gone from them, and statistics of sites (FedRDN, sitenorm) change "
            "nothing; prepare the images as they left the scanner"
        )
    if len(survey.channels) > 1:
        counts = ", ".join(f"{n} of {channels} channels" for channels, n in sorted(survey.channels.items()))
        if not written.shape:
            written.warnings.append(f"site {site}: {counts}; the bundle's transforms must bring them to one number")


def _moments(row: Row) -> Moments:
    values = row.astype(np.float64).reshape(-1)
    return Moments(values.size, float(values.sum()), float(values @ values))


def _source_name(path: Path, data: Path) -> str:
    return path.relative_to(data).as_posix() if path.is_relative_to(data) else path.as_posix()


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
