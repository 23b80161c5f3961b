"""Hugging Face's Trainer: a tiny GPT-2 with evaluation, metrics of gathered logits, accumulation, saving, resume.

transformers_program.py FOLDER [line]: under torchrun; with `line` over ringdp.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import launched
import torch
import torch.distributed as dist
from ringdp.integrations.transformers import observe
from transformers import EvalPrediction, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

WORDS, LENGTH = 32, 12


def texts(seed: int, count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(WORDS, (count, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in made]


def accuracy(found: EvalPrediction) -> dict[str, float]:
    guessed, wanted = found.predictions.argmax(-1)[:, :-1], found.label_ids[:, 1:]
    return {"accuracy": float((guessed == wanted).mean()), "samples": float(len(wanted))}


def model() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config)  # of random values


def trainer_for(folder: str, way: str) -> Trainer:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        seed=3,
        num_train_epochs=2,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        logging_steps=1,
        report_to=way.removeprefix("observed-") if way.startswith("observed-") else "none",
        disable_tqdm=True,
    )
    return Trainer(
        model_init=model,
        args=arguments,
        train_dataset=texts(1, 22),
        eval_dataset=texts(2, 9),
        compute_metrics=accuracy,
    )


def numbers(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Without what depends on the clock."""
    timed = ("runtime", "per_second")
    return [{k: v for k, v in entry.items() if not any(word in k for word in timed)} for entry in history]


def train(folder: str, way: str = "") -> dict[str, Any]:
    """Two epochs, then the second once more from the first one's checkpoint, then a prediction; what came out."""
    if way == "line" or way.startswith("observed"):
        dist.init_process_group("ringdp")
    first = trainer_for(folder, way)
    if way.startswith("observed"):
        observe(first, f"{folder}/run.json", items_per_step=8, unit="texts")
    first.train()
    kept = f"{folder}/kept"
    if first.is_world_process_zero():
        shutil.copytree(min(Path(folder).glob("checkpoint-*"), key=lambda path: int(path.name[11:])), kept)
    dist.barrier()
    second = trainer_for(folder, way)
    second.train(resume_from_checkpoint=kept)
    guessed = second.predict(texts(4, 7))
    weights = [parameter.flatten().tolist() for parameter in second.model.parameters()]
    return {
        "losses": numbers(first.state.log_history),
        "after resume": numbers(second.state.log_history),
        "predicted": [guessed.predictions.tolist(), numbers([guessed.metrics])],
        "weights": weights,
    }


if __name__ == "__main__":
    launched.main(train)
