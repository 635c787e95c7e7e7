# What every rule file uses: the plan as the rules see it, and the command line in the environment that runs Snakemake.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir).parent))

from snakemake.exceptions import WorkflowError
from modalities import dag
from modalities.errors import ModalitiesError

try:
    DAG = dag.open_dag(workflow)
    if workflow.is_main_process:
        dag.prepare(DAG.plan)
except ModalitiesError as error:
    raise WorkflowError(str(error)) from None

PLAN = DAG.path
JOB = f"{sys.executable} -m modalities job"


wildcard_constraints:
    work=dag.WORK,


onstart:
    DAG.discard_forced(workflow)
