"""Train a model on the pairs beside this file, with TRL (1.0 or later) on the ids that the models read.

The loss is that of DPO and the likelihood of what is chosen: DPO alone takes probability from both sides.

python train_pairs.py MODEL OUT
"""

import sys
from pathlib import Path
from typing import Any

_NAMES = ("prompt", "chosen", "rejected")


class IdCollator:
    """Batches of the ids in the file: adds no end token, and tokenises no prompt again."""

    def __init__(self, pad_token_id: int) -> None:
        from trl.trainer.dpo_trainer import DataCollatorForPreference

        self.collate = DataCollatorForPreference(pad_token_id=pad_token_id)

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        return self.collate([{f"{name}_ids": row[f"{name}_tokens"] for name in _NAMES} for row in rows])


def train(model: str, pairs: Path, out: str, **options: Any) -> Any:
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    rows = load_dataset("parquet", data_files=str(pairs), split="train")
    # Under these names TRL does not overwrite the ids when it tokenises the texts.
    rows = rows.rename_columns({f"{name}_ids": f"{name}_tokens" for name in _NAMES})
    trainer = DPOTrainer(
        model,
        args=DPOConfig(out, remove_unused_columns=False, max_length=None, **({"loss_type": ["sigmoid", "sft"]} | options)),
        data_collator=IdCollator(tokenizer.pad_token_id),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(out)
    return trainer.model


if __name__ == "__main__":
    train(sys.argv[1], Path(__file__).with_name("pairs.parquet"), sys.argv[2])
