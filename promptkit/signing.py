"""Who vouches for a pack: a signature over its SHA256SUMS, made and checked by OpenSSH's ssh-keygen.

    sign    ssh-keygen -Y sign -n promptkit -f ~/.ssh/id_ed25519 < PACK/SHA256SUMS > PACK.sig
    check   promptkit verify PACK --signature PACK.sig --key id_ed25519.pub

SHA256SUMS names every other file of a pack with its hash, so whoever signs it signs the pack. The signature lies beside
the pack and never inside, where any further file is a problem. Hashes say that a copy is whole; only a signature, or a
hash that was pinned elsewhere, says whose it is. No cryptography of our own, no key is kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from promptkit.errors import UsageError

NAMESPACE = "promptkit"  # a signature for another purpose (a commit, a letter) does not count


def problem(sums: Path, signature: str | os.PathLike[str], key: str | os.PathLike[str]) -> str | None:
    """Return what is wrong with a signature of the file `sums` by a public key, None where it is good.

    Raises UsageError if the key or signature cannot be read or ssh-keygen (OpenSSH 8.1 or later) is not installed.
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UsageError(
            "a signature was given, and ssh-keygen is not installed",
            hint="install OpenSSH 8.1 or later (openssh-client)",
        )
    for what, path in (("signature", signature), ("key", key)):
        if not Path(path).is_file():
            raise UsageError(f"{what} {os.fspath(path)}: no such file", hint="check the path")
    words = Path(key).read_text("utf-8", "replace").split()
    if len(words) < 2 or "PRIVATE" in words or not words[0].startswith(("ssh-", "ecdsa-", "sk-")):
        raise UsageError(
            f"key {os.fspath(key)}: no public key of OpenSSH", hint="give the .pub file: one line, ssh-ed25519 AAAA..."
        )
    with tempfile.TemporaryDirectory() as folder:
        # Who may sign: this key, for this purpose. The name is ours and only has to be the same in both places.
        allowed = Path(folder, "allowed")
        allowed.write_text(f'signer namespaces="{NAMESPACE}" {words[0]} {words[1]}\n', encoding="utf-8")
        command = [
            program,
            "-Y",
            "verify",
            "-f",
            str(allowed),
            "-I",
            "signer",
            "-n",
            NAMESPACE,
            "-s",
            os.fspath(signature),
        ]
        with open(sums, "rb") as data:
            done = subprocess.run(command, stdin=data, capture_output=True, check=False, timeout=60)
    if done.returncode == 0:
        return None
    said = " ".join((done.stderr or done.stdout).decode("utf-8", "replace").split())
    return f"the signature is not one of these hashes by this key ({said[:200] or 'ssh-keygen refuses it'})"
