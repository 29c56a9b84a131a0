"""Adapters: shardwire as a transport of weights in other packages, one module for each package, with the package's
name. See docs/adapters.md.

Each adapter imports its package, so each is imported by name: ``import shardwire.adapters.verl`` registers shardwire in
verl.
"""
