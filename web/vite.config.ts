import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";

// `npm run dev` forwards API requests to this server, a running `crumb up`.
const api = process.env["CRUMB_URL"] ?? "http://127.0.0.1:8081";

const apiPaths = [
  "/agents", "/auth", "/breadcrumbs", "/contexts", "/dlq", "/docs", "/events", "/feedback", "/health", "/hygiene", "/metrics", "/models",
  "/openapi.json", "/operations", "/ready", "/sessions", "/subscriptions", "/tenants", "/workers", "/lanes",
];

export default defineConfig({
  base: "/",
  plugins: [earlyTheme()],
  resolve: {
    alias: { "@breadcrumbs/client": fileURLToPath(new URL("./client/src/index.ts", import.meta.url)) },
  },
  build: {
    target: "es2022",
    // The content security policy forbids data: URLs, so assets stay separate files.
    assetsInlineLimit: 0,
    // Current browsers support modulepreload.
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    host: "127.0.0.1",
    proxy: Object.fromEntries(
      apiPaths.map((path) => [
        path,
        {
          target: api,
          changeOrigin: true,
          // The server refuses other origins, and this page is served from the port of Vite.
          configure: (proxy) => proxy.on("proxyReq", (request) => request.removeHeader("origin")),
        },
      ]),
    ),
  },
});

/** Adds the script that sets the theme before the first paint. A file, because the policy forbids inline scripts. */
function earlyTheme(): Plugin {
  const source = () => readFileSync(new URL("./src/early-theme.js", import.meta.url), "utf8");
  const hash = createHash("sha256").update(source()).digest("base64url").slice(0, 8);
  const file = `assets/theme-${hash}.js`;
  return {
    name: "early-theme",
    generateBundle() {
      this.emitFile({ type: "asset", fileName: file, source: source() });
    },
    transformIndexHtml: {
      order: "post",
      handler(_html, context) {
        return context.server
          ? [{ tag: "script", children: source(), injectTo: "head-prepend" }]
          : [{ tag: "script", attrs: { src: `/${file}` }, injectTo: "head-prepend" }];
      },
    },
  };
}
