/** Where a session begins. */

import { Icon } from "../../components/icons";
import type { Chat } from "./chat";

const IDEAS = ["Hello!", "What is 12 × 34?", "What did I say?", "What do you see?"];

export function Welcome({ chat }: { chat: Chat }) {
  return (
    <div class="chat-scroll">
      <div class="empty">
        <Icon name="chat" />
        <h2>Start a session</h2>
        <p>
          What you say becomes a breadcrumb on the blackboard, tagged with its session. Open a second window beside
          this one: two sessions never see each other.
        </p>
        <ul class="ideas" aria-label="Ideas">
          {IDEAS.map((idea) => (
            <li key={idea}>
              <button type="button" class="button" onClick={() => chat.say(idea)}>
                {idea}
              </button>
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}
