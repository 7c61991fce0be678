"""What the recipes share: their settings files and command line, results and pictures, and demonstrations."""
