"""Bodies put together again from manifests. Rule: from what they brought to the log, and from nothing else."""

from proxy.model.manifest import BlobPiece, Manifest, Slice, compute_root_link, decode_recipe


class Log:
    """Gathers what manifests bring, and puts bodies together again from nothing else."""

    def __init__(self) -> None:
        self.slices: dict[bytes, Slice] = {}
        self.blobs: dict[bytes, bytes] = {}

    def take(self, manifest: Manifest) -> None:
        """It is in the log now."""
        self.slices |= {each.link: each for each in manifest.slices}
        self.blobs |= {blob.digest: blob.content for blob in manifest.blobs}

    def rebuild(self, recipe: bytes, tenant: bytes = b"tenant") -> bytes:
        """A body, of a tenant."""
        out = b""
        for piece in decode_recipe(recipe):
            if isinstance(piece, bytes):
                out += piece
            elif isinstance(piece, BlobPiece):
                out += self.blobs[piece.digest]
            else:
                out += self._follow(piece.link, compute_root_link(tenant))
        return out

    def _follow(self, link: bytes, root: bytes) -> bytes:
        chain = b""
        while link != root:
            content = self.slices[link].content
            assert content is not None
            chain = self.slices[link].gap + content + chain
            link = self.slices[link].parent
        return chain
