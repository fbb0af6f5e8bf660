"""Code that makes TensorFlow impossible to import."""

BLOCK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras"):
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refuse())
"""
