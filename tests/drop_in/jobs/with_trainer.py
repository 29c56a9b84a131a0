"""Hugging Face's Trainer with ddp_backend="gloo", which on CPUs takes no name of a plug-in."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import job


class Clock(TrainerCallback):
    def on_step_end(self, *_, **__):
        job.tick()


torch.manual_seed(3)
config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=4, vocab_size=1000)
model = LlamaForCausalLM(config)
data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 1000, (64, 16))]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, use_cpu=True, ddp_backend="gloo", max_steps=len(job.steps()),
                                  per_device_train_batch_size=2, report_to=[], save_strategy="no", disable_tqdm=True,
                                  seed=1, dataloader_num_workers=0)
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Clock()]).train()
job.finish(model.state_dict())
job.end()
