"""Sign an app, and serve it to a SuperLink whose nodes accept only signed apps (``--trusted-entities``).

    python docs/fleet/signed_app.py build signed --app .         build the bundle that nodes run, signed/app.fab
    python docs/fleet/signed_app.py sign signed --key auditor    sign it after reading it; repeat with other keys if needed
    python docs/fleet/signed_app.py serve signed                 serve bundle and signatures on 127.0.0.1:9093

A SuperLink requests signatures only from Flower Hub. With ``FLWR_SUPERGRID_API_URL=http://127.0.0.1:9093`` in its environment, it
requests them from this server instead. The server need not be trusted, because nodes check the signatures. Keys are Ed25519
without a passphrase (``ssh-keygen -t ed25519 -f auditor``). ``sign`` prints the line for the nodes' file of trusted entities.
"""

import argparse
import base64
import hashlib
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

BUNDLE, SIGNATURES = "app.fab", "signatures.json"


def main() -> None:
    """Handle the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "sign", "serve"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--app", type=Path, default=Path(), help="build: the app's folder")
    parser.add_argument("--key", type=Path, help="sign: a private key; its file's name is the trusted entity's")
    parser.add_argument("--listen", default="127.0.0.1:9093", help="serve: address for the SuperLink")
    args = parser.parse_args()
    if args.what == "build":
        args.folder.mkdir(parents=True, exist_ok=True)
        (args.folder / BUNDLE).write_bytes(build_fab_from_disk(args.app))
        (args.folder / SIGNATURES).write_text("[]")
    elif args.what == "sign" and args.key:
        sign(args.folder, args.key)
    elif args.what == "serve":
        serve(args.folder, args.listen)
    else:
        parser.error("sign needs --key")


def sign(folder: Path, path: Path) -> None:
    """Add a signature of the current bundle."""
    key = load_ssh_private_key(path.read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise SystemExit(f"{path} is no Ed25519 key: make one with ssh-keygen -t ed25519 -f {path}")
    now = int(time.time())
    digest = hashlib.sha256((folder / BUNDLE).read_bytes()).digest()
    signature = base64.urlsafe_b64encode(key.sign(create_message_to_sign(digest, now))).rstrip(b"=").decode()
    signed = [one for one in json.loads((folder / SIGNATURES).read_text()) if one["public_key_id"] != path.name]
    signed.append({"public_key_id": path.name, "signature": signature, "signed_at": now})
    (folder / SIGNATURES).write_text(json.dumps(signed))
    print(f"{path.name}: {key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()}")


def serve(folder: Path, listen: str) -> None:
    """Serve one app like Flower Hub, until interrupted."""
    host, _, port = listen.rpartition(":")

    class Hub(BaseHTTPRequestHandler):
        """Serves one bundle for every request; a SuperLink rejects another app's name."""

        def do_POST(self) -> None:
            """Send the bundle's address and its signatures."""
            reply = {
                "fab_url": f"http://{listen}/{BUNDLE}",
                "verifications": json.loads((folder / SIGNATURES).read_text()),
            }
            self._answer(json.dumps(reply).encode() if self.path == "/hub/fetch-fab" else None)

        def do_GET(self) -> None:
            """Send the bundle."""
            self._answer((folder / BUNDLE).read_bytes() if self.path == f"/{BUNDLE}" else None)

        def _answer(self, body: bytes | None) -> None:
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

    print(f"serving {folder / BUNDLE} on {listen}", flush=True)
    ThreadingHTTPServer((host, int(port)), Hub).serve_forever()


if __name__ == "__main__":
    main()
