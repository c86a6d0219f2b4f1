"""Helpers that do not depend on the RL algorithm.

Files:     files, json_shapes, checksums, code_version
Models:    model_folder, loaded_model, precision
Machine:   machine, threads, time_limit
Texts:     text, quotes
"""
