# What every rule file uses: the plan as the rules see it, and the command line in the environment that runs Snakemake.
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir).parent))

from snakemake.exceptions import WorkflowError
from modalities import dag
from modalities.errors import ModalitiesError

try:
    RUN = dag.open_dag(workflow)
    workflow.localrules(*RUN.local_rules())
    if workflow.is_main_process:
        dag.prepare(RUN.plan)
except ModalitiesError as error:
    raise WorkflowError(str(error)) from None


JOB = f"{shlex.quote(sys.executable)} -m modalities job --plan {shlex.quote(str(RUN.path))}"
AGAIN = f"{shlex.quote(sys.executable)} -m modalities.cluster"


wildcard_constraints:
    work=dag.WORK,


onstart:
    RUN.discard_forced(workflow)
