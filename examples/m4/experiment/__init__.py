"""The paper's experiment: mixtures of experts, dense models and bilingual ones, side by side."""
