"""The main job as a program: a model's weights moved from a training mesh to an inference mesh by one compiled op.

Run ``python -m shardwire.demo``; ``--help`` lists the arguments. The modules are small and meant to be read: checkpoint
(files -> tensors), gpt2 (tensors without a file), tensor_parallel (the layouts), job (one rank's part), today (the
usual way, for comparison), report (table, JSON), progress.
"""
