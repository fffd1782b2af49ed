from tests.store.test_state_machine import *
from hypothesis import HealthCheck
def test_many(embedded_server: EmbeddedServer) -> None:
    class Machine(StoreMachine):
        url = embedded_server.url
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=60, max_examples=1500, suppress_health_check=list(HealthCheck)))
del test_the_store_does_what_a_plain_model_does
