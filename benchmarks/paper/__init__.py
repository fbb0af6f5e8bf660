"""The paper's claims, section by section, beside what this project has."""
