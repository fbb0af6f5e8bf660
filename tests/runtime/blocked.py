"""Code that makes impossible to import what a host that runs Artifacts need not have."""

BLOCK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras", "tensorstore"):
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refuse())
"""
