"""Text -> Spec and Params: two readers, one Document, presets, manifests, the catalogue."""
