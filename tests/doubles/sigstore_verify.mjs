// Sigstore's own verifier (npm @sigstore/verify) over a bundle of ours, by a public key: prints the statement's
// first subject, or fails.  node sigstore_verify.mjs FOLDER BUNDLE KEY; FOLDER has node_modules.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createPublicKey } from "node:crypto";

const [folder, bundlePath, keyPath] = process.argv.slice(2);
const load = createRequire(`${folder}/`);
const { bundleFromJSON } = load("@sigstore/bundle");
const { TrustedRoot } = load("@sigstore/protobuf-specs");
const { toSignedEntity, toTrustMaterial, Verifier } = load("@sigstore/verify");

const bundle = bundleFromJSON(JSON.parse(readFileSync(bundlePath, "utf8")));
const publicKey = createPublicKey(readFileSync(keyPath));
const root = TrustedRoot.fromJSON({
  mediaType: "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
  tlogs: [], certificateAuthorities: [], ctlogs: [], timestampAuthorities: [],
});
const material = toTrustMaterial(root, () => ({ publicKey, validFor: () => true }));
const thresholds = { tlogThreshold: 0, ctlogThreshold: 0, tsaThreshold: 0, timestampThreshold: 0 };
new Verifier(material, thresholds).verify(toSignedEntity(bundle));
const statement = JSON.parse(bundle.content.dsseEnvelope.payload.toString());
console.log(statement.subject[0].digest.sha256);
