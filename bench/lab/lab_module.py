"""What lab_step.py imports."""

from ingot.lab_deeper import NUMBER

VERSION = f"a{NUMBER}"
