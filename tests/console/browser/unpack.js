// Unpacks the Chromium of this package, with the libraries and fonts it needs, into the directory that is named.
// It was packed for machines that have neither, so it runs on any Linux (x86-64) without being installed.
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const target = resolve(process.argv[2]);
rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
process.env.TMPDIR = target; // where the package unpacks to

const { inflate } = await import("@sparticuz/chromium");
const packed = fileURLToPath(new URL("node_modules/@sparticuz/chromium/bin/", import.meta.url));
await Promise.all(["chromium.br", "al2023.tar.br", "fonts.tar.br"].map((name) => inflate(join(packed, name))));

// Theirs names directories that are not here.
writeFileSync(
  join(target, "fonts.conf"),
  `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>${join(target, "fonts")}</dir><cachedir>${join(target, "fonts-cache")}</cachedir></fontconfig>
`,
);
