/** Start page of a new session. */

import { Icon } from "../../components/icons";
import { confined, lacking } from "../../lib/credential";
import type { Chat } from "./chat";
import { OfflineHint } from "./model-picker";

const IDEAS = ["Hello!", "What is 12 × 34?", "What did I say?", "What do you see?"];

export function Welcome({ chat }: { chat: Chat }) {
  const refused = lacking("emitter") ?? confined();
  return (
    <div class="chat-scroll">
      <div class="empty">
        <Icon name="chat" />
        <h2>Start a session</h2>
        <p>
          Each message is a breadcrumb on the blackboard, tagged with its session. Messages of one session are never
          visible in another. To try it, open a second window.
        </p>
        <OfflineHint />
        <ul class="ideas" aria-label="Suggestions">
          {IDEAS.map((idea) => (
            <li key={idea}>
              <button
                type="button"
                class="button"
                disabled={refused !== undefined}
                title={refused}
                onClick={() => chat.say(idea)}
              >
                {idea}
              </button>
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}
