# Install rules: filled in together with the package config.
