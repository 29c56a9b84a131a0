"""The main job as a program: a model's weights moved from a training mesh to an inference mesh by one compiled op.

Run it as ``python -m shardwire.demo``; ``--help`` says what it takes. The modules are small and meant to be read:
checkpoint (files -> tensors), gpt2 (tensors without a file), tensor_parallel (who holds what), job (one rank's part), today (the usual way, for
comparison), report (table, JSON), progress.
"""
