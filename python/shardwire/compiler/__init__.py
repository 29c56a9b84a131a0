"""compile_op and what it needs: layouts, specs, who plans, futures, and the calls that compile a movement of their own."""
