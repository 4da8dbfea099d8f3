"""From folders of images to prepared sites: what lies on disk (layouts), and how it is written down (prepare)."""
