"""Ids of models, by which calibrations and journals are matched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelId:
    """The id of a model. `revision` is the Hub's commit, or `sha256:…` of the files of a local folder."""

    id: str
    revision: str | None

    def same_model(self, other: "ModelId") -> bool:
        """One model, as far as names tell: the same files, or the same hub id (whatever its commit)."""
        if any((model.revision or "").startswith("sha256:") for model in (self, other)):
            return self.revision == other.revision
        return self.id == other.id

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision[:15]}"
