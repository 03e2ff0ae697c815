"""Ids of models, by which calibrations and journals are matched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelId:
    """The id of a model. `revision` is the hub's commit, or `blake2b:…` of the files of a local folder.

    Those of an adapter, and of repositories whose code it runs, stand behind it: `COMMIT+COMMIT`.
    """

    id: str
    revision: str | None

    def same_model(self, other: "ModelId") -> bool:
        """One model, as far as names tell: the same files, or the same hub id (whatever its commit) and the same adapter."""
        own, their = (model.revision or "" for model in (self, other))
        if ":" in own + their:
            return own == their
        return self.id == other.id and own.partition("+")[2] == their.partition("+")[2]

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision[:15]}"
