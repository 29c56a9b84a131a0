"""Lightning's Trainer with DDP."""

import os
import warnings

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

import job

warnings.simplefilter("ignore")


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = job.model()

    def training_step(self, batch, index):
        return job.loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Clock(Callback):
    def on_train_batch_end(self, *_):
        job.tick()


ranks = int(os.environ["WORLD_SIZE"])
seed_everything(3)
module = Module()
trainer = Trainer(accelerator="cpu", devices=ranks, strategy="ddp", max_steps=len(job.steps()), max_epochs=1,
                  logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                  callbacks=[Clock()])
trainer.fit(module, torch.utils.data.DataLoader(job.data(8 * ranks), batch_size=8))
job.finish(module.layers.state_dict())
job.end()
