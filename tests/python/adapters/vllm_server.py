"""A real vLLM for test_vllm_server.py: vllm_server.py MODEL WORKERS SOCKET. Calls of the LLM object come by the socket,
and their results go back; "tokens" generates a few tokens.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Client
from typing import Any

from vllm import LLM, SamplingParams

PROMPT = [3, 17, 5, 99]
NEW = 12


def main(model: str, workers: str, address: str) -> None:
    llm = LLM(model, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=64, max_num_seqs=2,
              tensor_parallel_size=int(workers), kv_cache_memory_bytes=1 << 26,
              weight_transfer_config={"backend": "shardwire"})

    def tokens() -> list[int]:
        llm.reset_prefix_cache()
        greedy = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
        [answer] = llm.generate([{"prompt_token_ids": PROMPT}], greedy, use_tqdm=False)
        return list(answer.outputs[0].token_ids)

    with Client(address) as trainer:
        trainer.send("ready")
        while (call := trainer.recv()) is not None:
            name, given = call
            result: Any = None
            error = ""
            try:
                result = tokens() if name == "tokens" else getattr(llm, name)(*given)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            trainer.send((error, result))


if __name__ == "__main__":
    main(*sys.argv[1:])
