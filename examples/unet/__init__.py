"""Finding touching cells with a U-Net whose images are split over devices."""
