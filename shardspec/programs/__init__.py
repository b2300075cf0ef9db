"""What a compiler made of a step: text of its final program in, the noun of `ir/step.py` out."""
