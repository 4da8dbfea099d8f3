"""Where transformed images are kept: in memory or on disk, within a limit, never under a name that is stale."""

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from monai_fedskew.errors import DataError
from monai_fedskew.sites.plain_items import from_plain, tensors_of, to_plain

__all__ = ["DiskCache", "ImageCache", "MemoryCache"]

logger = logging.getLogger(__name__)
_END, _MB = ".safetensors", 2**20
_ENTRY = 256  # bytes in a file's header for one tensor, at the most
# what reading gives for a file that `put` did not write whole; a device that is not here is an AssertionError of torch
_DAMAGED = (SafetensorError, KeyError, TypeError, ValueError, RecursionError, RuntimeError, AssertionError)


class ImageCache(Protocol):
    """Keeps items under a chain's name and an item's; both are digests."""

    def get(self, chain: str, item: str) -> Any:
        """Return a copy of what is kept, or None."""

    def put(self, chain: str, item: str, value: Any) -> None:
        """Keep a value if there is room."""


class MemoryCache:
    """Keep items in this process until they take ``limit_mb``; later ones are not kept.

    Images are asked for in turn, so throwing out the one used longest ago would throw out the one needed next.

    Args:
        limit_mb: megabytes (2**20 bytes) of tensors and arrays.

    Example:
        >>> import torch
        >>> cache = MemoryCache(1)
        >>> cache.put("chain", "item", {"image": torch.ones(2)})
        >>> cache.get("chain", "item"), cache.get("another", "item")
        ({'image': tensor([1., 1.])}, None)
    """

    def __init__(self, limit_mb: float) -> None:
        self._room = limit_mb * _MB
        self._kept: dict[str, Any] = {}
        self._chain = ""
        self.bytes = 0

    def get(self, chain: str, item: str) -> Any:
        """Return a copy, which may be changed; None where nothing is kept, or only results of another chain."""
        return deepcopy(self._kept.get(item)) if chain == self._chain else None

    def put(self, chain: str, item: str, value: Any) -> None:
        """Keep a copy if there is room; results of another chain are dropped."""
        if chain != self._chain:
            self._kept, self._chain, self.bytes = {}, chain, 0
        size = sum(tensor.nbytes for tensor in tensors_of(value))
        if item not in self._kept and self.bytes + size <= self._room:
            self._kept[item] = deepcopy(value)
            self.bytes += size


class DiskCache:
    """Keep items as safetensors files, ``folder/<chain>/<item>.safetensors``, until they take ``limit_mb``.

    No pickle is read or written. A file is written beside its place and renamed, so processes may share a folder. When
    room is needed, files go that were last used before this cache was opened, the oldest first; where that is not
    enough, an item is not kept. A file that is damaged is dropped, with a warning, and made again.

    Args:
        folder: made when first written to.
        limit_mb: megabytes (2**20 bytes) of all files in the folder.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     DiskCache(folder, 1).put("chain", "item", {"image": torch.ones(2), "subject": "s1"})
        ...     DiskCache(folder, 1).get("chain", "item")
        {'image': tensor([1., 1.]), 'subject': 's1'}
    """

    def __init__(self, folder: str | Path, limit_mb: float) -> None:
        self.folder, self._limit = Path(folder).absolute(), limit_mb * _MB
        self._opened = time.time_ns()
        self._bytes: int | None = None  # of all files, as far as is known here

    def get(self, chain: str, item: str) -> Any:
        """Return what is kept, or None.

        Raises:
            DataError: the file is there and may not be read.
        """
        path = self._path(chain, item)
        try:
            with safe_open(path, framework="pt") as file:
                told = file.metadata()
                if told["of"] != f"{chain}/{item}":
                    raise ValueError(f"it is {str(told['of'])[:20]}..., another image")
                spec = json.loads(told["item"])
                found = from_plain(spec, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  no mapping
        except FileNotFoundError:
            return None
        except _DAMAGED as error:
            logger.warning("%s is damaged (%s); it is made again", path, error)
            with suppress(OSError):  # where it may only be read, it stays and is not used
                path.unlink()
            return None
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error}); delete it, or give another cache_dir") from error
        with suppress(OSError):  # in a folder that may only be read
            os.utime(path)  # what was used stays longest
        return found

    def put(self, chain: str, item: str, value: Any) -> None:
        """Keep a value if there is room.

        Raises:
            ConfigError: it holds something that is neither tensor, array, number, text nor a list or dict of these.
            DataError: the folder cannot be written to.
        """
        tensors: dict[str, Tensor] = {}
        spec = json.dumps(to_plain(value, tensors))
        # the file holds the text with every quote escaped, and an entry for each tensor
        header = len(json.dumps(spec)) + _ENTRY * (len(tensors) + 1)
        size = header + sum(tensor.nbytes for tensor in tensors.values())
        if not self._make_room(size):
            return
        path = self._path(chain, item)
        part = path.with_name(f".{uuid.uuid4().hex}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, part, metadata={"item": spec, "of": f"{chain}/{item}"})
            part.replace(path)
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"cache_dir {self.folder}: cannot keep an image ({error}); use another or cache: none"
            ) from error
        finally:
            with suppress(OSError):
                part.unlink()  # there only if something failed
        self._bytes = (self._bytes or 0) + size

    def _path(self, chain: str, item: str) -> Path:
        return self.folder / chain / f"{item}{_END}"

    def _make_room(self, size: int) -> bool:
        if self._bytes is not None and self._bytes + size <= self._limit:
            return True
        files = sorted(_files(self.folder))  # by time of last use; also what other processes wrote meanwhile
        self._bytes = sum(used for _, used, _ in files)
        for last_use, used, path in files:
            if self._bytes + size <= self._limit or last_use >= self._opened or size > self._limit:
                break
            path.unlink(missing_ok=True)
            self._bytes -= used
            with suppress(OSError):
                path.parent.rmdir()  # only when it is empty
        return self._bytes + size <= self._limit


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield time of last use, size and path of all files, parts of a process that was killed included."""
    for path in folder.glob("*/*"):
        if path.suffix in (_END, ".part"):
            with suppress(FileNotFoundError):  # another process has just removed it
                about = path.stat()
                yield about.st_mtime_ns, about.st_size, path
