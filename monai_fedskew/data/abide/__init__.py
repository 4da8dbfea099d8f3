"""ABIDE: from downloaded or own resting-state fMRI to connectomes, one prepared folder a hospital.

One file a stage: `fetch` (files through nilearn), `extract` (4-D NIfTI and atlas to ROI series), `prepare` (series to
sites), which stands on `phenotypes`, `scans`, `timeseries`, `connectome` and `store`; `windows` reads rows back.
`csv_tables`, `images` and `parcellation` read what people bring along, and say what is wrong with it.
"""
