"""The Hugging Face hub, as far as judgebench needs it: dataset repositories, and files of models.

The one file that names `huggingface_hub`, imported at the first call. Who one is comes from `HF_TOKEN` or
the client's own login (`hf auth login`), where the hub is from `HF_ENDPOINT`; neither passes through here.
This file does not know what is in the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from judgebench.errors import StoreError


class Moved(Exception):
    """Somebody committed since the state that a commit builds on."""


@dataclass(frozen=True)
class State:
    """A repository at one commit: path -> size in bytes."""

    commit: str
    files: Mapping[str, int]


class Repository:
    """A dataset repository, `OWNER/NAME`. Every method raises `StoreError` in words for people."""

    def __init__(self, name: str) -> None:
        self.name = name

    def state(self, revision: str | None = None) -> State | None:
        """What is there at a branch, tag or commit (default: the newest); null where no repository is."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

        with self._told("read"):
            try:
                info = HfApi().repo_info(self.name, repo_type="dataset", revision=revision)
            except GatedRepoError:
                raise
            except RepositoryNotFoundError:
                return None
            tree = HfApi().list_repo_tree(
                self.name, repo_type="dataset", revision=info.sha, recursive=True, expand=False
            )
            files = {item.path: int(item.size) for item in tree if hasattr(item, "size")}
            return State(str(info.sha), files)

    def create(self, *, private: bool) -> None:
        """Make the repository; nothing happens if it is there."""
        from huggingface_hub import HfApi

        with self._told("created"):
            HfApi().create_repo(self.name, repo_type="dataset", private=private, exist_ok=True)

    def download(self, state: State, paths: Sequence[str]) -> dict[str, Path]:
        """Files of a state in the client's cache; what is there already is not fetched again."""
        from huggingface_hub import snapshot_download

        if not paths:
            return {}
        with self._told("read"):
            # Patterns are globs: a name that holds no bracket, star or question mark is only itself.
            folder = Path(
                snapshot_download(
                    self.name, repo_type="dataset", revision=state.commit, allow_patterns=list(paths)
                )
            )
        return {path: folder / path for path in paths}

    @contextmanager
    def open(self, state: State, path: str) -> Iterator[BinaryIO]:
        """A file of which only the parts that are read travel."""
        from huggingface_hub import HfFileSystem

        with (
            self._told("read"),
            HfFileSystem().open(
                f"datasets/{self.name}/{path}", "rb", revision=state.commit, cache_type="none"
            ) as file,
        ):
            yield file

    def commit(self, parent: State, files: Mapping[str, Path | bytes], message: str) -> str:
        """Add files on top of a state; gives the address of the commit.

        Raises:
            Moved: the repository is no longer in that state; nothing was changed.
        """
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.errors import HfHubHTTPError

        operations = [
            CommitOperationAdd(path, content if isinstance(content, bytes) else str(content))
            for path, content in files.items()
        ]
        with self._told("written"):
            try:
                done = HfApi().create_commit(
                    self.name,
                    operations,
                    repo_type="dataset",
                    commit_message=message,
                    parent_commit=parent.commit,
                )
            except HfHubHTTPError as error:
                if _status(error) == 412:
                    raise Moved from None
                raise
        return str(done.commit_url)

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        """The client's many errors as ours. They are told by kind and status: a body may hold anything."""
        try:
            yield
        except (StoreError, Moved):
            raise
        except Exception as error:  # the hub's own, its HTTP client's and the system's: no common root
            status = _status(error)
            why = f"{type(error).__name__}{f', HTTP {status}' if status else ''}"
            raise StoreError(f"{self.name} cannot be {done} on the hub ({why}). {_way_out(status)}") from None


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return int(status) if status else None


def _way_out(status: int | None) -> str:
    if status in (401, 403):
        return "Log in (hf auth login, or HF_TOKEN) with a token that may do this, and check OWNER/NAME."
    if status == 404:
        return "Check OWNER/NAME and the revision; a private repository needs a login (HF_TOKEN)."
    return "Check the network, the name OWNER/NAME and, if it is set, HF_ENDPOINT."


def model_file(repo: str, path: str, revision: str | None) -> Path:
    """A file of a model repository, from the client's cache or fetched. Raises the client's own errors."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repo, path, revision=revision))
