/** Export of a conversation as a file. The browser creates it: nothing is stored on the server. */

import {
  readAllMessages,
  transcriptAsJson,
  transcriptAsMarkdown,
  transcriptName,
  type Session,
} from "@breadcrumbs/client";
import type { Action } from "../../components/menu";
import { attempt } from "../../components/toast";
import { client } from "../../lib/server";

const FORMATS = {
  md: { type: "text/markdown", write: transcriptAsMarkdown },
  json: { type: "application/json", write: transcriptAsJson },
};

export function exportActions(session: Session): Action[] {
  return [
    { name: "Export as Markdown", icon: "download", run: () => void exportSession(session.id, "md") },
    { name: "Export as JSON", icon: "download", run: () => void exportSession(session.id, "json") },
  ];
}

async function exportSession(id: string, format: keyof typeof FORMATS): Promise<void> {
  await attempt("Export failed", async () => {
    const session = await client.sessions.read(id);
    const messages = await readAllMessages(client.sessions, id);
    const { type, write } = FORMATS[format];
    save(new Blob([write(session, messages)], { type }), transcriptName(session, format));
  });
}

function save(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser reads the content after the click
}
