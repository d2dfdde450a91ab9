"""What holds numbers: arrays, .npy, .npz, torch and raw files, text; read in pieces."""
