"""Certificates for tests: an authority, members of it and others, made by the command `openssl`.

files = Certificates(folder)
files.settings("member")    # {"tls_cert": ..., "tls_key": ..., "tls_ca": ...} of a member of the authority "ca"
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def why_impossible() -> str:
    """Why this machine makes no certificates; empty when it does."""
    return "" if shutil.which("openssl") else "certificates need the command openssl"


class Certificates:
    """In `folder`: the authorities "ca" and "other"; "member" and "expired" are ca's, "stranger" is other's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority in ("ca", "other"):
            self._openssl("req", "-x509", "-days", "2", *self._new(authority), "-out", authority)
        for name, authority, days in (("member", "ca", 1), ("expired", "ca", -1), ("stranger", "other", 1)):
            self._openssl("req", "-new", *self._new(name), "-out", f"{name}.csr")
            by = ["-CA", authority, "-CAkey", f"{authority}.key", "-set_serial", "1", "-days", str(days)]
            self._openssl("x509", "-req", "-in", f"{name}.csr", *by, "-out", name)

    def settings(self, name: str, authority: str = "ca") -> dict[str, object]:
        """Of a rank that shows this certificate and asks for those of that authority."""
        files = {"tls_cert": name, "tls_key": f"{name}.key", "tls_ca": authority}
        return {setting: self.folder / file for setting, file in files.items()}

    @staticmethod
    def _new(name: str) -> list[str]:
        return [*KEY, "-keyout", f"{name}.key", "-subj", f"/CN={name}"]

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True, timeout=30)
