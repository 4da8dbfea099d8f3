"""From files to prepared sites and their datasets: numpy, pandas and nibabel; torch for the dataset classes only."""
