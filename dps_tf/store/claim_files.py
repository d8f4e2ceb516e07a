"""The files of claims in one folder: who claimed what last, and who beats.

`<name>.<generation>.claim` holds a token and whether the claim was released;
`<token>.owner` holds the owner and the number of its last heartbeat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dps_tf.store.errors import DamagedError, StoreError
from dps_tf.store.files import FileSystem
from dps_tf.store.owners import Owner
from dps_tf.store.records import encode_record, read_json, write_json

_FILE = re.compile(r"(.+)\.(\d{8,})\.claim")
_LOOKS = 3  # times to look for a claim that vanishes between listing and reading


@dataclass(frozen=True)
class Newest:
    """The newest claim to a name.

    Attributes:
        generation: its number, from 1; 0 if there never was one.
        token: whose it is; one that nobody has if the file cannot be read.
        is_released: whether the thing is free.
    """

    generation: int
    token: str
    is_released: bool


@dataclass(frozen=True)
class ClaimFiles:
    """Reads and writes the files of claims; decides nothing.

    Attributes:
        files: where the folder is.
        directory: the folder.
    """

    files: FileSystem
    directory: str

    def newest(self, name: str) -> Newest:
        """Returns the claim of the highest generation."""
        generation = 0
        for _ in range(_LOOKS):
            found = [n for other, n in self._generations() if other == name]
            if not found:
                return Newest(0, "", True)
            generation = max(found)
            try:
                content = read_json(self.files, self._path(name, generation))
            except FileNotFoundError:
                # Taken back just now by one who came too late.
                continue
            except DamagedError:
                break
            return Newest(generation, content["token"], content["released"])
        return Newest(generation, f"unreadable-{name}-{generation}", False)

    def create(self, name: str, generation: int, token: str) -> bool:
        """Makes a claim; returns False if there is one of that generation."""
        data = encode_record({"token": token, "released": False})
        return self.files.create_exclusive(self._path(name, generation), data)

    def mark_released(self, name: str, generation: int, token: str) -> None:
        """Makes the thing free, if the claim is still the newest."""
        content = {"token": token, "released": True}
        write_json(self.files, self._path(name, generation), content)

    def remove(self, name: str, generation: int) -> None:
        """Removes one claim; never the newest."""
        self.files.remove(self._path(name, generation))

    def remove_older(self, name: str, generation: int) -> None:
        """Removes the claims of all generations before the given one."""
        for other, number in self._generations():
            if other == name and number < generation:
                self.remove(name, number)

    def read_owner(self, token: str) -> tuple[Owner | None, int | None]:
        """Returns an owner and the number of its last heartbeat, or Nones."""
        try:
            content = read_json(self.files, self._owner_path(token))
            return Owner.from_json(content["owner"]), int(content["beat"])
        except (FileNotFoundError, DamagedError):
            return None, None

    def write_owner(self, owner: Owner, beat: int) -> None:
        """Writes a heartbeat."""
        content = {"owner": owner.to_json(), "beat": beat}
        write_json(self.files, self._owner_path(owner.token), content)

    def remove_owner(self, token: str) -> None:
        """Removes an owner that claims nothing any more."""
        self.files.remove(self._owner_path(token))

    def last_heartbeat(self, token: str) -> float | None:
        """Returns when an owner was last heard by the file's clock, for people."""
        try:
            return self.files.modified_time(self._owner_path(token))
        except (FileNotFoundError, StoreError):
            return None

    def _generations(self) -> list[tuple[str, int]]:
        names = self.files.list_names(self.directory)
        matches = map(_FILE.fullmatch, names)
        return [(match[1], int(match[2])) for match in matches if match]

    def _path(self, name: str, generation: int) -> str:
        return f"{self.directory}/{name}.{generation:08d}.claim"

    def _owner_path(self, token: str) -> str:
        return f"{self.directory}/{token}.owner"
