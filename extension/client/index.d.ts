export * from "../../web/client/src/index.ts";
