"""`judgebench browse`: the store in a web browser, through Datasette. Reads only, on this machine only.

Datasette is the extra `browse`; nothing else of judgebench knows it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judgebench.errors import ConfigError, StoreError
from judgebench.folder import COMPLETE, Job
from judgebench.looking import role_of, tell
from judgebench.report import literal
from judgebench.request import Descriptor
from judgebench.store import layout
from judgebench.store.layout import ROLES
from judgebench.store.looking import each
from judgebench.store.root import root_of

HOST = "127.0.0.1"  # what a store holds is for nobody else; ssh -L reaches it from elsewhere
FACETS = (
    *("benchmark", "model_a", "model_b", "orientation", "protocol", "finish_reason", "origin"),
    *("served_model", "sample"),
)
_OF_ROLE = {"completions": FACETS[:2] + FACETS[5:], "judgements": FACETS}


@dataclass
class Browse:
    """See `conf/browse.yaml`."""

    role: str | None = None
    port: int = 8001
    store: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, job: Job) -> int:
        """Serve until Ctrl-C; 3 where a file could not be read.

        Raises:
            ConfigError: no Datasette, no such role, a port that is taken.
            StoreError: nothing that could be shown.
        """
        try:
            import datasette.app as datasette
            import uvicorn
        except ImportError as error:
            raise ConfigError(
                f"browse needs Datasette, which is not installed here ({error}): "
                "pip install 'judgebench[browse]', or pip install 'datasette>=0.65,<1'."
            ) from None
        root, roles = root_of(self.store), [self.role] if role_of(self.role) else ROLES
        problems: list[str] = []
        shown = {
            name: place
            for role in roles
            for place in each(root, str(role), lambda source: (source.path, source.descriptor), problems)
            for name in [_name(str(role), *place)]
        }
        status = tell(problems)
        if not shown:
            raise StoreError(f"Nothing to browse in {root}: no answer is stored there. Another: store.root=…")
        served = datasette.Datasette(
            metadata={"title": "judgebench", "source": str(root), "databases": _metadata(shown)},
            settings={"num_sql_threads": 2, "default_facet_size": 12},
        )
        served.remove_database("_memory")  # it comes where no file is given at once
        for name, (path, _) in shown.items():
            opened = datasette.Database(served, path=str(path), is_mutable=not _is_still(path))
            served.add_database(opened, name=name)
        with closing(_listen(self.port)) as listener:
            print(f"store {root}\nhttp://{HOST}:{listener.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
            config = uvicorn.Config(served.app(), log_level="warning", lifespan="on")
            try:
                uvicorn.Server(config).run(sockets=[listener])
            except KeyboardInterrupt:  # how it is ended
                pass
        return status or COMPLETE


def _name(role: str, path: Path, descriptor: Descriptor) -> str:
    """What a database is called: role, model, beginning of the hash; of a segment, its own part too."""
    segment = path.name.removeprefix(role).removesuffix(".db").strip(".")
    return "-".join(filter(None, (role, layout.part(descriptor.model), descriptor.hash[:8], segment)))


def _metadata(shown: Mapping[str, tuple[Path, Descriptor]]) -> dict[str, Any]:
    return {
        name: {
            "description": literal(descriptor.text),
            "tables": {
                role: {"facets": list(_OF_ROLE[role]), "size": 50},
                **{table: {"hidden": True} for table in ("meta", "claims")},
            },
        }
        for name, (_, descriptor) in shown.items()
        for role in [name.partition("-")[0]]
    }


def _is_still(path: Path) -> bool:
    """Whether nobody can be writing: SQLite needs that said where it may not make its lock files."""
    wal = path.with_name(path.name + "-wal")
    return not os.access(path.parent, os.W_OK) and not wal.exists()


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # before the address is told: whoever comes early waits
    except (OSError, OverflowError, TypeError) as error:
        listener.close()
        raise ConfigError(
            f"port={port!r} cannot be listened on ({error}): take another, or port=0 for any free one."
        ) from None
    return listener
